/**
 * The root certificate of a deployment. Its key is generated once, is stored encrypted, and leaves the control plane
 * never: runners get intermediates.
 */
import type { RunnerCertificate } from '@releap/contract';
import type { ServiceKeys } from '../credentials/service-keys.ts';
import type { Root } from './certificates.ts';

export interface EgressRoot {
  /** What guests trust, as PEM. @throws KeysUnavailableError */
  certificate(): Promise<string>;
  /** An intermediate for a runner. @throws 400, KeysUnavailableError */
  issue(request: string, runnerId: string): Promise<RunnerCertificate>;
}

export function createEgressRoot(serviceKeys: ServiceKeys): EgressRoot {
  const read = async (): Promise<Root> => JSON.parse(await serviceKeys.get('egress-root')) as Root;
  return {
    certificate: async () => (await read()).certificate,
    async issue(request, runnerId) {
      const root = await read();
      const { signIntermediate } = await import('./certificates.ts');
      const { certificate, notAfter } = await signIntermediate(root, request, runnerId);
      return { certificate, root: root.certificate, not_after: notAfter.toISOString() };
    },
  };
}

/** For `ServiceKeysOptions.makers`. */
export async function makeEgressRoot(deploymentId: string): Promise<string> {
  const { createRoot } = await import('./certificates.ts');
  return JSON.stringify(await createRoot(deploymentId.slice(0, 8)));
}
