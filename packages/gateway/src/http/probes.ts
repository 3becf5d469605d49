/** Paths that load balancers and supervisors poll: answered by the gateway itself, without a credential. */
export const PROBES: ReadonlySet<string | undefined> = new Set(['/healthz', '/livez', '/readyz']);
