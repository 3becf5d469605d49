export { client, type ClientOptions } from './client.ts';
export { pause } from './deadline.ts';
export { asFailure, hasStatus, ReleapError, type FailureDetails, type FailureKind } from './error.ts';
export { exposePort } from './expose-port.ts';
export { downloadFile, statRemote, uploadFile } from './files.ts';
export { findByName, findHost, findSandbox, findSnapshot, listHosts, listSnapshots } from './find.ts';
export { followLog, type FollowedLog, type LogWriter } from './follow-log.ts';
export { followBuild, listImages, LOG_IDLE_MS, readBuildLog } from './images.ts';
export { endLease, keepLease, OWN_SANDBOX } from './lease.ts';
export { MOUNT_ANSWER_MS, unmountStore, unmountStores } from './object-stores.ts';
export { pages } from './pages.ts';
export { quoteForShell } from './quote.ts';
export { RawAnswer } from './raw-answer.ts';
export {
  openService,
  retryOnOverload,
  RETRIED_READS,
  type Api,
  type Service,
  type ServiceOptions,
} from './service.ts';
export { gatewayUrl, openToolbox, type Toolbox } from './toolbox.ts';
export type {
  Call,
  CallOptions,
  Client,
  FormBody,
  Input,
  Operations,
  Output,
  RawBody,
  RetryPolicy,
} from './types.ts';
export { commitVolume } from './volumes.ts';
export {
  buildFailure,
  poll,
  waitForBuild,
  waitForVersion,
  waitUntilChanged,
  waitUntilDeleted,
  waitUntilDone,
  waitUntilForked,
  waitUntilReady,
  waitUntilRunning,
  type Change,
  type Polled,
  type WaitOptions,
} from './wait.ts';
export {
  ERROR_CODES,
  type ErrorCode,
  operations,
  toolboxOperations,
  toolboxUrl,
} from '@releap/contract/wire';
