/** What the runner and netd share: their protocol, and what an egress policy means. */
export * from './intercept.ts';
export * from './lines.ts';
export * from './messages.ts';
export * from './stores.ts';
export * from '../rules/cidr.ts';
export * from '../rules/egress-rules.ts';
export * from '../rules/name-server.ts';
export * from '../rules/rate-limit.ts';
