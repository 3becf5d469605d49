export { GATEWAY_LIMITS, type GatewayLimits } from './limits.ts';
export { type Gateway, type GatewayOptions, startGateway } from './server.ts';
export type { RequestHead, Route, TargetKind } from './targets/target.ts';
export { type HeaderPolicy, headerPolicy, type HeaderRules } from './http/headers.ts';
