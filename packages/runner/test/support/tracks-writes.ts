import { release } from 'node:os';

const [major = 0, minor = 0] = release().split('.').map(Number);

/** Whether this kernel tracks the writes of a process (Linux 6.7). Older ones mark written pages, for which nothing is traced. */
export const TRACKS_WRITES = major > 6 || (major === 6 && minor >= 7);
