/** Sandboxes that a program creates for itself and deletes at its end. */
import type { Service } from './service.ts';

/** Field of the create: the service deletes the sandbox when this process is killed, or loses its network for so long. */
export const OWN_SANDBOX = { lease_s: 180 } as const;

/** So two of three renewals may fail. */
const RENEW_MS = 45_000;
const RENEW_DEADLINE_MS = 30_000;

/**
 * Renews the lease of a sandbox until it is disposed of. Failed renewals are repeated at the next one's time; a service of an
 * earlier version has no leases.
 */
export function keepLease(service: Service, id: string): Disposable {
  const timer = setInterval(
    () => void renew(service, id, OWN_SANDBOX.lease_s).catch(() => undefined),
    RENEW_MS,
  );
  // In Node a lease does not keep the process; other platforms have no `unref`.
  (timer as { unref?: () => void }).unref?.();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

/** The sandbox stays until it is deleted; also after the service's signal was aborted. @throws ReleapError */
export async function endLease(service: Service, id: string): Promise<void> {
  await renew(service, id, null);
}

async function renew(service: Service, id: string, secs: number | null): Promise<void> {
  const { api } = service.withSignal(AbortSignal.timeout(RENEW_DEADLINE_MS));
  await api.leaseSandbox({ params: { id }, body: { lease_s: secs } });
}
