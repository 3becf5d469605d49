export { GuestClient, nowNs } from './guest-client.ts';
export type * from './requests.ts';
export { GuestError } from './guest-error.ts';
export type { GuestErrorCode } from './guest-error.ts';
export type { EntrypointListener, EntrypointOutput } from './entrypoint-output.ts';
export type { EntrypointState, FileEntry, GuestHello } from './replies.ts';
