/** What needs Node: local files and folders, streams of processes, terminals. */
export {
  fileSizes,
  packFolder,
  unpackFolder,
  type CopyCount,
  type PackOptions,
  type Select,
} from './archive.ts';
export { copyIn, copyOut, statLocal, type LocalSource, type LocalTarget, type RemoteEnd } from './copy.ts';
export { longFetch } from './long-fetch.ts';
export { runProcess, streamProcess, type ProcessEnd, type ProcessStreams, type Resizes } from './process.ts';
export { openSocket, openStream } from './socket.ts';
export { runOnTerminal, type LocalTerminal } from './terminal.ts';
export { attachTerminal } from './terminal-session.ts';
