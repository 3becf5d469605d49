/** Sandboxes that a command creates for itself and deletes at its end. */
import type { Context } from '../terminal.ts';
import { openService } from './service.ts';

/** Field of the create: the service deletes the sandbox when this process is killed, or loses its network for so long. */
export const OWN_SANDBOX = { lease_s: 180 } as const;

/** So two of three renewals may fail. */
const RENEW_MS = 45_000;
const RENEW_DEADLINE_MS = 30_000;

/**
 * Renews the lease of a sandbox until it is disposed of. Failed renewals are repeated at the next one's time; a service of an
 * earlier version has no leases.
 */
export function keepLease(context: Context, id: string): Disposable {
  const renew = async (): Promise<void> => {
    const { api } = openService(context, AbortSignal.timeout(RENEW_DEADLINE_MS));
    await api.leaseSandbox({ params: { id }, body: OWN_SANDBOX }).catch(() => undefined);
  };
  const timer = setInterval(() => void renew(), RENEW_MS);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

/** The sandbox stays until it is deleted. @throws CliError */
export async function endLease(context: Context, id: string): Promise<void> {
  const { api } = openService(context, AbortSignal.timeout(RENEW_DEADLINE_MS));
  await api.leaseSandbox({ params: { id }, body: { lease_s: null } });
}
