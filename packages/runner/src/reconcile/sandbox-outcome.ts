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
    const { memory, unusable, ...local } = await this.#facts(cause);
    const facts: OutcomeFacts = { ...local, memory, cause, guestEnded: exit?.guestEnd !== undefined };
    const outcome = match(OUTCOMES, facts);
    if (outcome.status === 'paused' && memory === 'saved') this.#host.makeMemoryDurable(this.#state.vmId);
    const error = outcome.error ?? (outcome.memoryLost ? (unusable ?? why ?? NOT_RUNNING) : why);
    // With a complete suspend image the end of the VM loses nothing.
    const isWhole = outcome.status === 'paused' && (cause === 'vm-lost' || cause === 'suspend-failed');
    await this.#state.observe(outcome.status, {
      ...(outcome.memoryLost ? { memory: false } : {}),
      ...(error === undefined || isWhole ? {} : { error }),
    });
  }

  async #facts(cause: Cause) {
    const { vmId, isPersistent, past, hostRestarted } = this.#state;
    const local = isPersistent ? await this.#host.localState(vmId) : NOTHING_BESIDE_VM;
    const mustResume = cause === 'paused' || cause === 'resume-failed';
    const unusable =
      local.memory && local.disk && mustResume
        ? await this.#host.checkMemory(vmId).then(() => undefined, messageOf)
        : undefined;
    const memory = !local.memory ? 'none' : unusable === undefined ? 'saved' : 'unusable';
    return {
      persistent: isPersistent,
      disk: local.disk,
      memory,
      unusable,
      hasManifest: past.manifest !== undefined,
      hostRestarted: local.hostRestarted || hostRestarted,
    } as const;
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
