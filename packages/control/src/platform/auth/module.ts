import type { ControlContext } from '../../context.ts';
import type { Module } from '../module.ts';

/** Interval at which the last use of keys is written. */
const LAST_USED_MS = 30_000;
/** Interval at which entries of the audit log about API keys are written: a killed server loses that many. */
const AUDIT_MS = 1_000;

export function authModule({ authenticator, cleanup, keyAudit, log }: ControlContext): Module {
  cleanup.defer(() =>
    authenticator
      .flush()
      .catch((error: unknown) => log.warn({ err: error }, 'the last use of API keys could not be written')),
  );
  cleanup.defer(() =>
    keyAudit
      .flush()
      .catch((error: unknown) => log.error({ err: error }, 'entries of the audit log could not be written')),
  );
  return {
    name: 'auth',
    tasks: [
      { name: 'api-key-last-use', everyMs: LAST_USED_MS, leased: false, run: () => authenticator.flush() },
      { name: 'api-key-audit', everyMs: AUDIT_MS, leased: false, run: () => keyAudit.flush() },
    ],
  };
}
