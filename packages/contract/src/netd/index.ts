/** What the runner and netd share: their protocol, and what an egress policy means. */
export * from './intercept.ts';
export { HELPER_START_MS, LineError, LineReader } from './lines.ts';
export * from './messages.ts';
export * from './stores.ts';
export * from '../rules/network/cidr.ts';
export * from '../rules/network/egress-rules.ts';
export { RateLimit } from '../rules/fair-share.ts';
