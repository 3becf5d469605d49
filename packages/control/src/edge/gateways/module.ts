import type { ControlTokens } from '../../platform/credentials/token-set.ts';
import type { Authenticator } from '../../platform/auth/authenticator.ts';
import type { DataTokens } from '../../platform/credentials/data-tokens.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import type { PreviewTokens } from '../endpoints/preview-tokens.ts';
import { bearerToken, GATEWAY_LINK_PATH, unauthorized } from '@releap/contract';
import { isIn } from '../../platform/credentials/token-set.ts';
import { gauge } from '../../platform/metrics/scraped.ts';
import type { Module } from '../../platform/module.ts';
import { GatewayLinks, RECHECK_MS, ACTIVITY_MS } from './gateway-links.ts';
import { previewTarget } from './preview-target.ts';
import { forgetGrantChanges } from './recheck.ts';
import { sshTarget } from './ssh-target.ts';
import type { TargetResolver } from './target-resolver.ts';
import { toolboxTarget } from './toolbox-target.ts';

/** A grant expires before its data token by this share, for requests in flight and clock differences. */
const GRANT_TTL_SHARE = 0.75;

/** Interval at which changes of what grants depend on are forgotten. */
const FORGET_MS = 60_000;

/** The kind of change of a sandbox; older servers name none. */
const SANDBOX = 'sandbox';

export interface GatewaysModuleOptions {
  authenticator: Authenticator;
  dataTokens: DataTokens;
  database: Database;
  events: EventBus;
  log: Logger;
  options: { tokens: Pick<ControlTokens, 'gateway'> };
  previewTokens: PreviewTokens;
}

/** @param targets of other wings, beside those of sandboxes */
export function gatewaysModule(
  { authenticator, database, dataTokens, events, log, options, previewTokens }: GatewaysModuleOptions,
  targets: readonly TargetResolver[],
): Module {
  const links = new GatewayLinks({
    database,
    resolvers: [
      toolboxTarget({ database, authenticator, previewTokens }),
      previewTarget({ database, authenticator, previewTokens }),
      sshTarget(database, authenticator),
      ...targets,
    ],
    async dataToken(runnerId, sandboxId) {
      const { token, ttlMs } = await dataTokens.issue(runnerId, sandboxId);
      return { token, ttlMs: Math.floor(ttlMs * GRANT_TTL_SHARE) };
    },
    onDial: (runnerId, address) => events.emit('connections-wanted', { runnerId, address }),
    onListening: (instances) => events.emit('instances-listening', instances),
    log,
  });
  events.on('sandboxes-changed', (rows) => links.changed(rows.map((row) => row.id)));
  events.on('functions-changed', (ids) => links.changed(ids));
  events.on('function-pressure', (ids) => links.pressure(ids));
  events.on('instances-retired', (ids) => links.retire(ids));
  events.on('idle-instances-wanted', ({ instances, most }) => links.wantIdle(instances, most));
  events.on('changed-elsewhere', (changed) => {
    // Functions are compared by their revision: what their instances do changes no grant.
    links.changed(changed.filter(([, , , kind = SANDBOX]) => kind === SANDBOX).map(([id]) => id));
  });
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
    tasks: [
      { name: 'recheck-grants', everyMs: RECHECK_MS, leased: false, run: () => links.recheck() },
      {
        name: 'grant-changes',
        everyMs: FORGET_MS,
        leased: true,
        run: (signal) => forgetGrantChanges(database, signal),
      },
      { name: 'sandbox-activity', everyMs: ACTIVITY_MS, leased: false, run: () => links.recordActivity() },
    ],
  };
}
