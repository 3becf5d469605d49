import type { VmmDriver } from '../../src/vmm/driver.ts';
import { qemuDriver } from '../../src/vmm/qemu/driver.ts';

/** That of a host with these builds of QEMU, none of which can be started. */
export function driverWith(newest: string, ...others: string[]): VmmDriver {
  const versions = [newest, ...others];
  const build = (version: string) => ({ version, folder: '/vmm' });
  const forState = (version: string) => (versions.includes(version) ? build(version) : undefined);
  return qemuDriver({ newest: build(newest), versions, forState });
}
