import { canStart, observePaused } from './remains.ts';
import type { SandboxHost } from './sandbox-host.ts';
import type { SandboxState } from './sandbox-state.ts';

export interface Adoption {
  state: SandboxState;
  host: SandboxHost;
  /** Takes its VM over, if it runs. */
  findAgain: () => Promise<boolean>;
  /** Removes what was made for its VM. */
  end: () => Promise<void>;
  /** Removes all of it. */
  destroy: () => Promise<void>;
}

/** Finds out what the last runner left, in whatever step it ended, and makes a whole thing of it. */
export async function adopt(adoption: Adoption): Promise<void> {
  await (adoption.state.isPersistent ? adoptPersistent(adoption) : adoptEphemeral(adoption));
}

async function adoptEphemeral({ state, findAgain, end }: Adoption): Promise<void> {
  if (state.observation.status === 'running') {
    if (await findAgain()) return;
    await end();
    await state.observe('failed', { error: 'the micro-VM ended while the runner was not running' });
  } else if (!state.isSettled(false)) {
    await end();
  }
}

async function adoptPersistent({ state, host, findAgain, end, destroy }: Adoption): Promise<void> {
  const { status } = state.observation;
  const { origin } = state.assignment.spec;
  const remains = await host.remains(state.vmId);
  const mayRun =
    !remains.memory &&
    (['running', 'pausing', 'stopping'].includes(status) || (status === 'booting' && remains.resumed));
  if (mayRun && (await findAgain())) return;
  await end();
  // The last runner may have ended before it was.
  if (remains.memory) host.settleMemory(state.vmId);
  if (status === 'booting' && (origin?.type === 'fork' || (origin && state.past.manifest === undefined))) {
    // It was being made from something else: memory of a source that went with the last runner, or a snapshot of
    // which some is here and nobody knows how much. It begins again.
    state.past.manifest = undefined;
    return await destroy();
  }
  // Kept memory is the truth about being paused, however far the runner had come.
  if ((status === 'pausing' || status === 'running') && remains.memory) return await state.observe('paused');
  if (status === 'stopping') return remains.memory ? undefined : await state.observe('stopped');
  if (status === 'booting' && remains.resumed && !remains.memory) {
    return await observePaused(state, host, 'it ended while it was being resumed');
  }
  if (status !== 'running' && status !== 'pausing') return;
  // What the VM's own record said may be gone with the host's power.
  const restarted = remains.hostRestarted || state.hostRestarted;
  if (restarted && (await canStart(state, host))) {
    return await state.observe('stopped', { error: 'its host was restarted' });
  }
  await state.observe('failed', { error: 'the micro-VM ended while the runner was not running' });
}
