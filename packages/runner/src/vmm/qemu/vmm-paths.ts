import { MEMORY_DESCRIPTOR } from '../driver.ts';
import { JAILED_ROOT } from '../jail.ts';

/** Names of a VMM's sockets: QMP, the guest agent's port, and the guest's console. */
export const SOCKETS = ['qmp', 'agent', 'console'] as const;
export type SocketName = (typeof SOCKETS)[number];

/** Paths and descriptors that a VMM opens before it drops privileges, in the syntax of its options. */
export interface VmmPaths {
  memory: string;
  system: string;
  kernel: string;
  initramfs: string;
  /** Options of each socket's `-chardev`. */
  sockets: Record<SocketName, string>;
  /** Options of its `-netdev`. */
  tap: string;
  /** Options of the `-chardev` of each folder of the host that it shares, by their order. */
  share: (index: number) => string;
  /** Its chroot. */
  root: string;
}

/**
 * Descriptors of a VMM. The runner opens files, hostd opens sockets and the tap, so that the VMM needs no access to the host's
 * file system. It opens the files again as /dev/fd/N: QEMU accepts no descriptor for memory.
 */
export const DESCRIPTORS = {
  memory: MEMORY_DESCRIPTOR,
  state: 4,
  system: 5,
  kernel: 6,
  initramfs: 7,
  tap: 8,
  qmp: 9,
  agent: 10,
  console: 11,
} as const;

/** Files of the runner, in the order of their descriptors. */
export const INHERITED = ['memory', 'state', 'system', 'kernel', 'initramfs'] as const;

/** The first descriptor of those that are connected to servers of shared folders. */
const FIRST_SHARE = 12;

/** Descriptor that is connected to the server of a shared folder. */
export function shareDescriptor(index: number): number {
  return FIRST_SHARE + index;
}

const inherited = (name: keyof typeof DESCRIPTORS): string => `/dev/fd/${DESCRIPTORS[name]}`;
const received = (name: keyof typeof DESCRIPTORS): string => `fd=${DESCRIPTORS[name]}`;

/** Paths in the root that `hostd jail` creates. */
export const JAILED: VmmPaths = {
  memory: inherited('memory'),
  system: inherited('system'),
  kernel: inherited('kernel'),
  initramfs: inherited('initramfs'),
  sockets: { qmp: received('qmp'), agent: received('agent'), console: received('console') },
  tap: received('tap'),
  share: (index) => `fd=${shareDescriptor(index)}`,
  root: JAILED_ROOT,
};
