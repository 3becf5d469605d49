import { timingSafeEqual } from 'node:crypto';
import { bearerToken, GATEWAY_LINK_PATH, tokenDigest, unauthorized } from '@releap/contract';
import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { GatewayLinks, RECHECK_MS } from './gateway-links.ts';
import { toolboxTarget } from './toolbox-target.ts';

/** How long a gateway may use a grant before it asks again, in milliseconds. */
const GRANT_TTL_MS = 60_000;

export function gatewaysModule({
  authenticator,
  cleanup,
  database,
  events,
  log,
  options,
}: ControlContext): Module {
  const links = new GatewayLinks({
    database,
    resolvers: [toolboxTarget(database, authenticator)],
    dataToken: () => Promise.resolve({ token: options.internalToken, ttlMs: GRANT_TTL_MS }),
    log,
  });
  cleanup.defer(() => links.close());
  events.on('sandboxes-changed', (rows) => links.sandboxesChanged(rows.map((row) => row.id)));
  events.on('changed-elsewhere', (changed) => links.sandboxesChanged(changed.map(([id]) => id)));
  events.on('notifications-missed', () => links.mayHaveMissedChanges());
  const expected = tokenDigest(options.internalToken);
  return {
    name: 'gateways',
    upgrades(router) {
      router.on(GATEWAY_LINK_PATH, (request, socket, head) => {
        const token = bearerToken(request.headers.authorization);
        if (token === null || !timingSafeEqual(tokenDigest(token), expected))
          throw unauthorized('missing or invalid gateway credential');
        links.accept(request, socket, head);
      });
    },
    tasks: [{ name: 'recheck-grants', everyMs: RECHECK_MS, leased: false, run: () => links.recheck() }],
  };
}
