/** HTTP operations of runners: the values of their sandboxes' secrets, and certificates for interception. */
import { internalOperations } from '@releap/contract';
import type { Database } from '@releap/database';
import type { EgressRoot } from '../../fleet/egress/egress-root.ts';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { readRunnerDomains, readSandboxSecrets } from './sandbox-secrets.ts';

export function runnerSecretRoutes(
  { runner: plane }: Planes,
  {
    database,
    egressRoot,
    encryption,
  }: { database: Database; egressRoot: EgressRoot; encryption: Encryption },
): void {
  plane.operation(internalOperations.issueRunnerCertificate, async ({ body, runner }) => {
    const domains = await readRunnerDomains(database.pool, runner.runnerId);
    return await egressRoot.issue(body.request, runner.runnerId, domains);
  });
  plane.operation(internalOperations.readRunnerSecrets, ({ body, runner }) =>
    readSandboxSecrets(database.pool, encryption, body.sandboxes, runner.runnerId),
  );
}
