/** Accepts the connections of runners: checks the credential, and upgrades to a WebSocket. */
import { bearerToken, RUNNER_LINK_PATH, unauthorized } from '@releap/contract';
import { LINK_MESSAGE_MAX_BYTES } from '@releap/contract/runner';
import { WebSocketServer, type WebSocket } from 'ws';
import type { RunnerCredentials } from '../../platform/credentials/runner-credentials.ts';
import type { UpgradeRouter } from '../../platform/http/upgrade-router.ts';

export interface LinkServerOptions {
  credentials: RunnerCredentials;
  /** @param runnerId the runner whose credential opened the connection */
  onLink: (socket: WebSocket, runnerId: string) => void;
}

export interface LinkServer {
  /** Accepts the links of runners. */
  attach(upgrades: UpgradeRouter): void;
  /** Resolves when the open connections have ended. */
  close(): Promise<void>;
}

export function createLinkServer({ credentials, onLink }: LinkServerOptions): LinkServer {
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: LINK_MESSAGE_MAX_BYTES,
    perMessageDeflate: false,
  });
  return {
    attach(upgrades) {
      upgrades.on(RUNNER_LINK_PATH, async (request, socket, head) => {
        const identity = await credentials.authenticate(bearerToken(request.headers.authorization));
        if (identity === null) throw unauthorized('missing or invalid runner credential');
        sockets.handleUpgrade(request, socket, head, (upgraded) => onLink(upgraded, identity.runnerId));
      });
    },
    async close() {
      await new Promise<void>((resolve) => sockets.close(() => resolve()));
    },
  };
}
