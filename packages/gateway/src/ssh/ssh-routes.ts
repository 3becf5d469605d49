/** What the gateway's HTTP listener serves for SSH: its host keys, and SSH inside a WebSocket. */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { SshHostKeys } from '@releap/contract';
import { createWebSocketStream, WebSocketServer } from 'ws';
import type { RequestHead } from '../targets/target.ts';
import { credentialOf } from '../targets/toolbox.ts';
import { parseToolboxPath, TOOLBOX_PREFIX } from '../targets/toolbox-path.ts';
import { sshTarget } from './authentication.ts';
import type { Login } from './login.ts';
import type { SshServer } from './ssh-server.ts';

const HOST_KEYS_PATH = `${TOOLBOX_PREFIX}ssh/host-keys`;
const MESSAGE_MAX_BYTES = 1024 * 1024;

export interface SshRoutesOptions {
  server: SshServer;
  /** Where clients reach the SSH listener. */
  address: { host: string; port: number };
}

export class SshRoutes {
  readonly #options: SshRoutesOptions;
  readonly #sockets = new WebSocketServer({
    noServer: true,
    maxPayload: MESSAGE_MAX_BYTES,
    perMessageDeflate: false,
  });

  constructor(options: SshRoutesOptions) {
    this.#options = options;
  }

  /** The answer to `GET {toolbox}/ssh/host-keys`; undefined for other requests. Host keys are public. */
  hostKeys({ method, url }: RequestHead): SshHostKeys | undefined {
    if (url.split('?', 1)[0] !== HOST_KEYS_PATH || (method !== 'GET' && method !== 'HEAD')) return undefined;
    const { address, server } = this.#options;
    return { ...address, host_keys: server.hostKeys.map(({ publicKey }) => publicKey) };
  }

  /** The login of an upgrade of `{toolbox}/{sandbox id}/ssh`; undefined for other requests. @throws ApiError 400, 401 */
  login({ url, headers }: RequestHead): Login | undefined {
    if (!url.startsWith(TOOLBOX_PREFIX)) return undefined;
    const { vmId, tail } = parseToolboxPath(url);
    if (tail !== 'ssh') return undefined;
    return { target: sshTarget(vmId), token: credentialOf(headers) };
  }

  /** Accepts the WebSocket of an authorized client: its binary messages are the bytes of an SSH connection. */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer, login: Login): void {
    this.#sockets.handleUpgrade(request, socket, head, (webSocket) => {
      const transport = createWebSocketStream(webSocket);
      this.#options.server.serve(transport, request.socket.remoteAddress ?? '', login);
    });
  }
}
