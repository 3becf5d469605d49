import { topNode } from '../../disk/vm-disks.ts';
import type { VmDisks } from '../../disk/vm-disks.ts';
import { placeholderNode } from './command-line.ts';
import { DISKS } from './device-model.ts';
import type { DiskName } from './device-model.ts';
import type { Vm } from './vm.ts';

/** The disks that are attached to a VM before those of its sandbox. */
export type PresentDisks = 'placeholders' | 'warm-up';

/**
 * Attaches disks to the devices of a paused guest that uses none of its present disks. The VMM opens the files itself,
 * jailed and without privileges. All commands are sent at once and executed in order, before the guest is resumed.
 * @param keepsRoot the root image stays attached: it is the same one, and the guest has it mounted
 */
export async function attachDisks(
  vm: Vm,
  disks: VmDisks,
  present: PresentDisks,
  keepsRoot = false,
): Promise<void> {
  const exchanged = DISKS.filter((name) => !(keepsRoot && name === 'root'));
  const commands = exchanged.flatMap((name) => {
    const node = disks.nodes[name]['node-name'];
    const resize = { 'node-name': node, size: name === 'root' ? 0 : disks.bytes[name] };
    return [
      vm.qmp.execute('blockdev-add', disks.nodes[name]),
      vm.qmp.execute('qom-set', { path: `/machine/peripheral/${name}`, property: 'drive', value: node }),
      ...(name === 'root' ? [] : [vm.qmp.execute('block_resize', resize)]),
      vm.qmp.execute('blockdev-del', { 'node-name': presentNode(name, present) }),
    ];
  });
  const failed = (await Promise.allSettled(commands)).find((result) => result.status === 'rejected');
  if (failed) throw new Error(`the disks could not be attached: ${(failed.reason as Error).message}`);
}

function presentNode(name: DiskName, present: PresentDisks): unknown {
  return present === 'warm-up' ? topNode(name, 'warm-up') : placeholderNode(name)['node-name'];
}
