import { NotResumableError } from '../machine/index.ts';
import type { Exit, SandboxHost } from './sandbox-host.ts';
import type { SandboxState } from './sandbox-state.ts';
import { match, OUTCOMES } from './sandbox-table.ts';
import type { Cause, OutcomeFacts } from './sandbox-table.ts';

/** Local state of an ephemeral sandbox whose VM has ended. */
export const NOTHING_BESIDE_VM = { disk: false, memory: false, resumed: false, hostRestarted: false };
const NOT_RUNNING = 'it did not run when it was to be paused';

/** Decides the status of a sandbox whose VM has ended, by `OUTCOMES` and its local state. */
export class SandboxOutcome {
  readonly #state: SandboxState;
  readonly #host: SandboxHost;

  constructor(state: SandboxState, host: SandboxHost) {
    this.#state = state;
    this.#host = host;
  }

  /** Reports the status. @param why the error that ended the VM, if there is one */
  async report(cause: Cause, why?: string, exit?: Exit): Promise<void> {
    const { memory, obstacle, ...local } = await this.#facts(cause);
    const facts: OutcomeFacts = { ...local, memory, cause, guestEnded: exit?.guestEnd !== undefined };
    const { status, memoryLost, memoryBlocked, ...outcome } = match(OUTCOMES, facts);
    const isKept = memory === 'saved' || memory === 'blocked';
    if (status === 'paused' && isKept) this.#host.makeMemoryDurable(this.#state.vmId);
    const error =
      outcome.error ?? (memoryBlocked ? obstacle : memoryLost ? (obstacle ?? why ?? NOT_RUNNING) : why);
    // With a complete suspend image the end of the VM loses nothing.
    const isWhole = status === 'paused' && (cause === 'vm-lost' || cause === 'suspend-failed');
    await this.#state.observe(status, {
      ...(memoryLost ? { memory: false } : {}),
      ...(memoryBlocked && obstacle !== undefined ? { memory_blocked: obstacle } : {}),
      ...(error === undefined || isWhole ? {} : { error }),
    });
  }

  /**
   * Reports the last observation again. Whether the memory of a paused sandbox is blocked is checked anew first: the host may
   * have changed since.
   */
  async repeat(): Promise<void> {
    const { status, memory_blocked: then } = this.#state.observation;
    if (status === 'paused') {
      const { memory, obstacle } = await this.#facts('paused');
      const now = memory === 'blocked' ? obstacle : undefined;
      // Memory that is gone is reported when a resume needs it.
      if (now !== then && (memory === 'blocked' || memory === 'saved')) return await this.report('paused');
    }
    this.#state.repeat();
  }

  async #facts(cause: Cause) {
    const { vmId, isPersistent, past, hostRestarted } = this.#state;
    const local = isPersistent ? await this.#host.localState(vmId) : NOTHING_BESIDE_VM;
    const mustResume = cause === 'paused' || cause === 'resume-failed';
    const found =
      local.memory && local.disk && mustResume
        ? await this.#host.checkMemory(vmId).then(() => undefined, asObstacle)
        : undefined;
    return {
      persistent: isPersistent,
      disk: local.disk,
      memory: local.memory ? (found?.memory ?? 'saved') : 'none',
      /** Why the memory cannot be resumed. */
      obstacle: found?.obstacle,
      hasManifest: past.manifest !== undefined,
      hostRestarted: local.hostRestarted || hostRestarted,
    } as const;
  }
}

/** Only an image that is known to be gone or damaged is lost. */
function asObstacle(error: unknown): { memory: 'blocked' | 'unusable'; obstacle: string } {
  const memory = error instanceof NotResumableError ? 'unusable' : 'blocked';
  return { memory, obstacle: messageOf(error) };
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
