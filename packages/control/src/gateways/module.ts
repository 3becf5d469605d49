import { bearerToken, GATEWAY_LINK_PATH, unauthorized } from '@releap/contract';
import type { ControlContext } from '../context.ts';
import { isIn } from '../credentials/token-set.ts';
import { gauge } from '../metrics/scraped.ts';
import type { Module } from '../module.ts';
import { GatewayLinks, RECHECK_MS } from './gateway-links.ts';
import { previewTarget } from './preview-target.ts';
import { sshTarget } from './ssh-target.ts';
import { toolboxTarget } from './toolbox-target.ts';

/** A grant expires before its data token by this share, for requests in flight and clock differences. */
const GRANT_TTL_SHARE = 0.75;

export function gatewaysModule({
  authenticator,
  database,
  dataTokens,
  events,
  log,
  options,
  previewTokens,
}: ControlContext): Module {
  const links = new GatewayLinks({
    database,
    resolvers: [
      toolboxTarget(database, authenticator),
      previewTarget({ database, authenticator, previewTokens }),
      sshTarget(database, authenticator),
    ],
    async dataToken(runnerId, sandboxId) {
      const { token, ttlMs } = await dataTokens.issue(runnerId, sandboxId);
      return { token, ttlMs: Math.floor(ttlMs * GRANT_TTL_SHARE) };
    },
    log,
  });
  events.on('sandboxes-changed', (rows) => links.sandboxesChanged(rows.map((row) => row.id)));
  events.on('changed-elsewhere', (changed) => links.sandboxesChanged(changed.map(([id]) => id)));
  events.on('notifications-missed', () => links.mayHaveMissedChanges());
  return {
    name: 'gateways',
    metrics(registry) {
      gauge(
        registry,
        'releap_gateway_links',
        'Gateways that are connected to this server',
        () => links.connected,
      );
      gauge(
        registry,
        'releap_gateway_grants',
        'Grants of gateways that are connected to this server',
        () => links.grants,
      );
    },
    upgrades(router) {
      router.on(GATEWAY_LINK_PATH, (request, socket, head) => {
        if (!isIn(options.tokens.gateway, bearerToken(request.headers.authorization)))
          throw unauthorized('missing or invalid gateway credential');
        links.accept(request, socket, head);
      });
    },
    disconnect: () => links.close(),
    tasks: [{ name: 'recheck-grants', everyMs: RECHECK_MS, leased: false, run: () => links.recheck() }],
  };
}
