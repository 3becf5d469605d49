import { bearerToken, GATEWAY_LINK_PATH, unauthorized } from '@releap/contract';
import type { ControlContext } from '../../context.ts';
import { isIn } from '../../platform/credentials/token-set.ts';
import { functionTarget } from '../../functions/instances/function-target.ts';
import { functionInstanceTarget } from '../../functions/instances/instance-target.ts';
import { FUNCTION_PRESSURE, INSTANCE_RETIRED } from '../../functions/instances/instances.ts';
import { gauge } from '../../platform/metrics/scraped.ts';
import type { Module } from '../../platform/module.ts';
import { GatewayLinks, RECHECK_MS, ACTIVITY_MS } from './gateway-links.ts';
import { previewTarget } from './preview-target.ts';
import { sshTarget } from './ssh-target.ts';
import { toolboxTarget } from './toolbox-target.ts';

/** A grant expires before its data token by this share, for requests in flight and clock differences. */
const GRANT_TTL_SHARE = 0.75;

/** The kind of change of a sandbox; older servers name none. */
const SANDBOX = 'sandbox';

export function gatewaysModule(context: ControlContext): Module {
  const { authenticator, database, dataTokens, events, instances, log, options, previewTokens } = context;
  const links = new GatewayLinks({
    database,
    resolvers: [
      toolboxTarget({ database, authenticator, previewTokens }),
      previewTarget({ database, authenticator, previewTokens }),
      sshTarget(database, authenticator),
      functionTarget(context),
      functionInstanceTarget(instances),
    ],
    async dataToken(runnerId, sandboxId) {
      const { token, ttlMs } = await dataTokens.issue(runnerId, sandboxId);
      return { token, ttlMs: Math.floor(ttlMs * GRANT_TTL_SHARE) };
    },
    log,
  });
  events.on('sandboxes-changed', (rows) => links.changed(rows.map((row) => row.id)));
  events.on('functions-changed', (ids) => links.changed(ids));
  events.on('function-pressure', (ids) => links.pressure(ids));
  events.on('instances-retired', (ids) => links.retire(ids));
  events.on('changed-elsewhere', (changed) => {
    // Functions are compared by their revision: what their instances do changes no grant.
    links.changed(changed.filter(([, , , kind = SANDBOX]) => kind === SANDBOX).map(([id]) => id));
    const pressed = changed.filter(([, , , kind]) => kind === FUNCTION_PRESSURE).map(([id]) => id);
    if (pressed.length > 0) links.pressure(pressed);
    const retired = changed.filter(([, , , kind]) => kind === INSTANCE_RETIRED).map(([id]) => id);
    if (retired.length > 0) links.retire(retired);
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
      { name: 'sandbox-activity', everyMs: ACTIVITY_MS, leased: false, run: () => links.recordActivity() },
    ],
  };
}
