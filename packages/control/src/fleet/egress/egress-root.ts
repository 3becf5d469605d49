/** The root certificate that guests trust, because runners intercept TLS to put secrets into requests. Runners get intermediates. */
import type { RunnerCertificate } from '@releap/contract';
import type { ServiceKeys } from '../../platform/credentials/service-keys.ts';
import { createPlannedRoot, type PlannedRoot } from '../authority/planned-root.ts';

const DAY_MS = 24 * 3_600_000;

export interface EgressRoot extends Pick<PlannedRoot, 'renew'> {
  /** What guests trust, as PEM: one certificate, or while the root is being replaced two. @throws KeysUnavailableError */
  certificate(): Promise<string>;
  /** An intermediate for a runner, for these domains alone. @throws 400, KeysUnavailableError */
  issue(request: string, runnerId: string, domains: readonly string[]): Promise<RunnerCertificate>;
}

export interface EgressRootOptions {
  serviceKeys: ServiceKeys;
  /** Label of the deployment's roots. */
  label: () => Promise<string>;
  /** Default: the clock. */
  now?: () => number;
}

export function createEgressRoot({ serviceKeys, label, now }: EgressRootOptions): EgressRoot {
  const root = createPlannedRoot({
    serviceKeys,
    name: 'egress-root',
    plan: {
      // A root is valid for ten years. Guests that run trust what they were started with, for months; intermediates are valid for a day.
      nextAfterMs: 5 * 365 * DAY_MS,
      overlapMs: 180 * DAY_MS,
      previousMs: 8 * DAY_MS,
    },
    make: async () => (await import('./certificates.ts')).createRoot((await label()).slice(0, 8)),
    now,
  });
  return {
    certificate: () => root.trusted(),
    async issue(request, runnerId, domains) {
      const signing = await root.signing();
      const { signIntermediate } = await import('./certificates.ts');
      const { certificate, notAfter } = await signIntermediate(signing, request, runnerId, domains);
      return { certificate, root: signing.certificate, not_after: notAfter.toISOString() };
    },
    renew: () => root.renew(),
  };
}

/** For `ServiceKeysOptions.makers`. */
export async function makeEgressRoot(deploymentId: string): Promise<string> {
  const { createRoot } = await import('./certificates.ts');
  return JSON.stringify(await createRoot(deploymentId.slice(0, 8)));
}
