export { GATEWAY_LIMITS, type GatewayLimits } from './limits.ts';
export { generateHostKey, type HostKey, readHostKey } from './ssh/host-key.ts';
export { SSH_LIMITS, type SshLimits } from './ssh/ssh-limits.ts';
export { type Gateway, type GatewayOptions, startGateway } from './server.ts';
export type { RequestHead, Route, TargetKind } from './targets/target.ts';
export { type HeaderPolicy, headerPolicy, type HeaderRules } from './http/headers.ts';
export type { TlsOptions } from './http/tls-listener.ts';
export type { PreviewOptions } from './targets/preview.ts';
export { openPortStream } from './ports/port-stream.ts';
