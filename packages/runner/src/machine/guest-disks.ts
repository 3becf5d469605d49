import type { VmDisks } from '../disk/vm-disks.ts';
import { DISKS, nodeName } from '../vmm/command-line.ts';
import type { Vm } from '../vmm/vm.ts';

/** Tells the guest how large its disks are: the template had placeholders. */
export async function showSizes(vm: Vm, bytes: { scratch: number; docker: number }): Promise<void> {
  await Promise.all(
    (['scratch', 'docker'] as const).map((name) =>
      vm.qmp.execute('block_resize', { 'node-name': nodeName(name), size: bytes[name] }),
    ),
  );
}

/**
 * Puts real disks under the devices of a guest that stands still and holds nothing of those it had. All commands are
 * sent at once; the VMM runs them in order, and the guest sees nothing until it goes on.
 */
export async function swapDisks(vm: Vm, disks: VmDisks): Promise<void> {
  const commands = DISKS.flatMap((name) => {
    const node = disks.nodes[name]['node-name'];
    const resize = { 'node-name': node, size: name === 'root' ? 0 : disks.bytes[name] };
    return [
      vm.qmp.execute('blockdev-add', disks.nodes[name]),
      vm.qmp.execute('qom-set', { path: `/machine/peripheral/${name}`, property: 'drive', value: node }),
      ...(name === 'root' ? [] : [vm.qmp.execute('block_resize', resize)]),
      vm.qmp.execute('blockdev-del', { 'node-name': nodeName(name) }),
    ];
  });
  const failed = (await Promise.allSettled(commands)).find((result) => result.status === 'rejected');
  if (failed) throw new Error(`the disks could not be put in: ${(failed.reason as Error).message}`);
}
