export { client, type ClientOptions } from './client.ts';
export { ReleapError, type FailureDetails, type FailureKind } from './error.ts';
export { exposePort } from './expose-port.ts';
export { RawAnswer } from './raw-answer.ts';
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
export { operations, toolboxOperations, toolboxUrl } from '@releap/contract/wire';
