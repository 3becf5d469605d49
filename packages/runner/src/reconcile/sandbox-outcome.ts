import type { Exit, SandboxHost } from './sandbox-host.ts';
import type { SandboxState } from './sandbox-state.ts';
import { match, OUTCOMES } from './sandbox-table.ts';
import type { Cause, OutcomeFacts } from './sandbox-table.ts';

/** What is left of an ephemeral sandbox. */
export const NOTHING_BESIDE_VM = { disk: false, memory: false, resumed: false, hostRestarted: false };
const NOT_RUNNING = 'it did not run when it was to be paused';

/** What becomes of one sandbox whose VM is gone: by `OUTCOMES`, from what is left of it on this machine. */
export class SandboxOutcome {
  readonly #state: SandboxState;
  readonly #host: SandboxHost;

  constructor(state: SandboxState, host: SandboxHost) {
    this.#state = state;
    this.#host = host;
  }

  /** Reports what it is, now that its VM is gone. @param why what led to that, if that is an error */
  async report(cause: Cause, why?: string, exit?: Exit): Promise<void> {
    const { memory, unusable, ...local } = await this.#facts(cause);
    const facts: OutcomeFacts = { ...local, memory, cause, guestEnded: exit?.guestEnd !== undefined };
    const outcome = match(OUTCOMES, facts);
    if (outcome.status === 'paused' && memory === 'saved') this.#host.makeMemoryDurable(this.#state.vmId);
    const error = outcome.error ?? (outcome.memoryLost ? (unusable ?? why ?? NOT_RUNNING) : why);
    // A complete suspend image makes up for the end of its VM.
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
