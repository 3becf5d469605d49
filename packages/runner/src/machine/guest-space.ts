import { DiskFullError } from '../disk/check-space.ts';
import type { Vm } from '../vmm/driver.ts';

/**
 * A guest that is blocked on ENOSPC does not respond, so it must not get a request.
 * @throws DiskFullError when the guest is blocked
 */
export async function checkGuestHasSpace(vm: Vm): Promise<void> {
  if (await vm.isBlockedOnSpace()) throw isBlockedOnSpace();
}

export function isBlockedOnSpace(): DiskFullError {
  return new DiskFullError("the host's disk is full: the sandbox is paused until there is space");
}
