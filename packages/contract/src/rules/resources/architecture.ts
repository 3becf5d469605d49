/**
 * Names that differ between the architectures of hosts; guests have that of their host. The runner and `rlp doctor` use them, and set-up
 * has its own ones in setup/architecture.mjs, as it runs before anything else is there.
 */

export interface Architecture {
  /** In the words of Debian, Go and OCI images. */
  name: 'amd64' | 'arm64';
  /** File name of the dynamic loader, ld.so(8). */
  loader: string;
  /** File name of the VMM, QEMU. */
  vmm: string;
  /** What tells a guest's kernel where its console is; and the same for one that prints from its start, which is not `quiet` either. */
  console: string;
  earlyConsole: string;
}

const ARCHITECTURES: Readonly<Partial<Record<NodeJS.Architecture, Architecture>>> = {
  x64: {
    name: 'amd64',
    loader: 'ld-linux-x86-64.so.2',
    vmm: 'qemu-system-x86_64',
    console: 'console=ttyS0',
    earlyConsole: 'console=ttyS0 earlyprintk=ttyS0',
  },
  arm64: {
    name: 'arm64',
    loader: 'ld-linux-aarch64.so.1',
    vmm: 'qemu-system-aarch64',
    console: 'console=ttyAMA0',
    earlyConsole: 'console=ttyAMA0 earlycon',
  },
};

/** @param node as Node.js names it. @throws Error when there are no names for it */
export function architectureOf(node: NodeJS.Architecture): Architecture {
  const found = ARCHITECTURES[node];
  if (found === undefined)
    throw new Error(
      `sandboxes run on hosts with one of the architectures ${Object.keys(ARCHITECTURES).join(' and ')}, not on ${node}`,
    );
  return found;
}
