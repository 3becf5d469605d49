/** What becomes of an instance that is leased: it runs, and ends. */
import { ApiError, conflict } from '@releap/contract';
import type { Database } from '@releap/database';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { FunctionTemplates } from '../templates/templates.ts';
import { readInstance, STARTING, type InstanceState } from './leases.ts';

/** How often a state is read again, in milliseconds: other servers do not tell everything. */
const RECHECK_MS = { starting: 500, running: 5_000 };

export interface RunningInstance {
  sandboxId: string;
  projectId: string;
  runnerId: string;
  dataUrl: string;
}

export interface InstanceWatch {
  /** Resolves when the sandbox runs. @throws 409 when the lease has ended, 429 or 502 when it does not start */
  running(sandboxId: string, holderId: string, signal: AbortSignal): Promise<RunningInstance>;
  /** Rejects when the sandbox does not run any more. @throws 409 when the lease has ended, 502 with what has ended it */
  ended(sandboxId: string, holderId: string, signal: AbortSignal): Promise<never>;
}

export function createInstanceWatch({
  changes,
  database,
  templates,
}: {
  changes: ChangeNotifier;
  database: Database;
  templates: Pick<FunctionTemplates, 'discard'>;
}): InstanceWatch {
  /** Looks at each change of an instance. @param of decides; undefined: not yet. @throws 409 when the lease has ended */
  async function untilState<T>(
    lease: { sandbox_id: string; gateway_id: string },
    recheckMs: number,
    signal: AbortSignal,
    of: (state: InstanceState) => T | undefined | Promise<T | undefined>,
  ): Promise<T> {
    using watch = changes.watch(lease.sandbox_id);
    for (;;) {
      const state = await readInstance(database.pool, lease);
      if (state === undefined) throw leaseLost(lease.sandbox_id);
      const decided = await of(state);
      if (decided !== undefined) return decided;
      await watch.next(recheckMs, signal);
      signal.throwIfAborted();
    }
  }

  return {
    running(sandboxId, holderId, signal) {
      const lease = { sandbox_id: sandboxId, gateway_id: holderId };
      return untilState(lease, RECHECK_MS.starting, signal, async (state) => {
        const { status, runner_id: runnerId, data_url: dataUrl, project_id: projectId } = state;
        if (status === 'running' && runnerId !== null && dataUrl !== null)
          return { sandboxId, projectId, runnerId, dataUrl };
        if ((STARTING as readonly string[]).includes(status)) return undefined;
        if (state.template_id !== null && runnerId !== null)
          await templates.discard(state.template_id, runnerId);
        throw new InstanceEnded(state);
      });
    },

    ended(sandboxId, holderId, signal) {
      const lease = { sandbox_id: sandboxId, gateway_id: holderId };
      return untilState<never>(lease, RECHECK_MS.running, signal, (state) => {
        if (state.status !== 'running') throw new InstanceEnded(state);
        return undefined;
      });
    },
  };
}

export const leaseLost = (sandboxId: string): Error =>
  conflict(
    `instance ${sandboxId} is not leased to this gateway any more: request another one`,
    'concurrent_change',
  );

/** An instance that does not run, and will not. */
export class InstanceEnded extends ApiError {
  /** Of its sandbox. */
  readonly state: InstanceState;

  constructor(state: InstanceState) {
    const why = state.error ?? `it is ${state.status}`;
    // It was never placed: there was no capacity.
    if (state.runner_id === null) super(429, why);
    else super(502, `the instance does not run: ${why}`);
    this.name = 'InstanceEnded';
    this.state = state;
  }
}
