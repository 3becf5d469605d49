/** What lies between the data socket of a runner and the agent of a guest. Tests put an agent of their own behind it. */
export { GuestClient } from '../guest/index.ts';
export { LogFile, readLog } from '../logs/log-file.ts';
export { AddressStreams } from '../ports/address-streams.ts';
export { type PortHost, registerPortStreams } from '../ports/port-stream.ts';
export { registerToolbox } from '../toolbox/index.ts';
export { type DataServer, startDataServer } from './data-server.ts';
export { type IdleSandbox, registerIdle } from './idle-routes.ts';
export { type LogKind, registerBuildLogs, registerLogs } from './log-routes.ts';
