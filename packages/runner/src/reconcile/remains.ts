/** What can still be had of a sandbox whose VM does not run. */
import type { SandboxHost } from './sandbox-host.ts';
import type { SandboxState } from './sandbox-state.ts';

export const DISK_GONE = 'its disk is not on this machine any more';

/** Observes what a sandbox is that does not run and is to be paused. @param error why it does not run, if it was to */
export async function observePaused(state: SandboxState, host: SandboxHost, error?: string): Promise<void> {
  const { disk, memory } = await host.remains(state.vmId);
  if (!disk) return await state.observe('failed', { error: DISK_GONE });
  if (!memory) {
    const why = error ?? 'it did not run when it was to be paused';
    return await state.observe('paused', { memory: false, error: why });
  }
  try {
    await host.checkMemory(state.vmId);
  } catch (unusable) {
    return await state.observe('paused', { memory: false, error: messageOf(unusable) });
  }
  // Whoever meant to go on from it has taken it for used.
  host.settleMemory(state.vmId);
  await state.observe('paused', error === undefined ? {} : { error });
}

/** @throws when its disk is gone */
export async function requireDisk(state: SandboxState, host: SandboxHost): Promise<void> {
  if (!(await host.remains(state.vmId)).disk) throw new Error(DISK_GONE);
}

/** Whether it has run and its disk is here. */
export async function canStart(state: SandboxState, host: SandboxHost): Promise<boolean> {
  if (!state.isPersistent || state.past.manifest === undefined) return false;
  return (await host.remains(state.vmId)).disk;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
