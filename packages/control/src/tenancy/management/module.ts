import type { OidcOptions } from '../../platform/auth/oidc/verifier.ts';
import type { Authenticator } from '../../platform/auth/authenticator.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { KeyAudit } from './key-audit.ts';
import type { Logger } from 'pino';
import { purge } from '../../platform/retention/purge.ts';
import type { Module } from '../../platform/module.ts';
import { managementRoutes } from './routes.ts';

/** Interval at which entries of the audit log about API keys are written: a killed server loses that many. */
const AUDIT_MS = 1_000;

/** Invitations that were accepted or have expired. */
export const INVITATION_PURGE = purge(
  'invitations',
  `delete from invitations where id in (
       select id from invitations
        where coalesce(accepted_at, expires_at) < now() - $1 * interval '1 day' limit $2 for update skip locked)
     returning id`,
);

export interface ManagementModuleOptions {
  authenticator: Authenticator;
  database: Database;
  cleanup: AsyncDisposableStack;
  events: EventBus;
  keyAudit: KeyAudit;
  log: Logger;
  options: { oidc?: OidcOptions };
}

/** Organizations, members, invitations, projects, API keys, audit. */
export function managementModule(context: ManagementModuleOptions): Module {
  const { cleanup, keyAudit, log } = context;
  cleanup.defer(() =>
    keyAudit
      .flush()
      .catch((error: unknown) => log.error({ err: error }, 'entries of the audit log could not be written')),
  );
  return {
    name: 'management',
    purges: [INVITATION_PURGE],
    routes: (planes) => managementRoutes(planes, { ...context, oidc: context.options.oidc }),
    tasks: [{ name: 'api-key-audit', everyMs: AUDIT_MS, leased: false, run: () => keyAudit.flush() }],
  };
}
