/** The names of a VMM's sockets: its control connection, the port of the guest's agent, and the guest's console. */
export const SOCKETS = ['qmp', 'agent', 'console'] as const;
export type SocketName = (typeof SOCKETS)[number];

/** Where a VMM finds what it opens before it gives up its privileges, in the syntax of its options. */
export interface Places {
  memory: string;
  system: string;
  kernel: string;
  initramfs: string;
  /** Of each socket, as options of its `-chardev`. */
  sockets: Record<SocketName, string>;
  /** As options of its `-netdev`. */
  tap: string;
  /** What it is chrooted into. */
  root: string;
}

/**
 * Descriptors of a VMM. The runner opens files, hostd opens sockets and the tap, so that the VMM needs no way to the host's
 * files. It opens the files once more by their names in /dev/fd: QEMU takes no descriptor for memory.
 */
export const DESCRIPTORS = {
  memory: 3,
  state: 4,
  system: 5,
  kernel: 6,
  initramfs: 7,
  tap: 8,
  qmp: 9,
  agent: 10,
  console: 11,
} as const;

const inherited = (name: keyof typeof DESCRIPTORS): string => `/dev/fd/${DESCRIPTORS[name]}`;
const received = (name: keyof typeof DESCRIPTORS): string => `fd=${DESCRIPTORS[name]}`;

/** In the root that `hostd jail` makes. */
export const JAILED: Places = {
  memory: inherited('memory'),
  system: inherited('system'),
  kernel: inherited('kernel'),
  initramfs: inherited('initramfs'),
  sockets: { qmp: received('qmp'), agent: received('agent'), console: received('console') },
  tap: received('tap'),
  root: '/vm',
};

/** The VMM's own folder in that root. */
export const JAILED_VMM = '/vmm';
