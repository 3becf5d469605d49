/** HTTP operations of runners: join, and the key of data tokens. */
import { bearerToken, conflict, internalOperations, quote, RUNNER_PROTOCOL_OLDEST } from '@releap/contract';
import type { Planes } from '../http/planes.ts';
import type { DataTokens } from './data-tokens.ts';
import type { RunnerCredentials } from './runner-credentials.ts';

export interface RunnerRoutes {
  runnerCredentials: RunnerCredentials;
  dataTokens: DataTokens;
  deploymentId: string;
}

export function runnerRoutes(
  { runner: plane }: Planes,
  { runnerCredentials, dataTokens, deploymentId }: RunnerRoutes,
): void {
  plane.operation(internalOperations.joinRunner, async ({ body, request }) => {
    const { runner_id, credential_sha256, protocol = RUNNER_PROTOCOL_OLDEST, deployment_id: former } = body;
    if (protocol < RUNNER_PROTOCOL_OLDEST)
      throw conflict(
        `the machine speaks version ${protocol} of the runner protocol, and ${RUNNER_PROTOCOL_OLDEST} is the oldest one here: ` +
          'install the version of the control plane on it',
      );
    if (former !== undefined && former !== deploymentId)
      throw conflict(`the machine belongs to deployment ${quote(former)}, and this is another one`);
    await runnerCredentials.join({
      runnerId: runner_id,
      digest: Buffer.from(credential_sha256, 'hex'),
      token: bearerToken(request.headers.authorization),
    });
    return { runner_id, deployment_id: deploymentId };
  });

  plane.operation(
    internalOperations.getRunnerDataKey,
    async ({ runner: { runnerId, credentialId, renew } }) => {
      const key = await dataTokens.keyOf(runnerId, credentialId);
      return { key_id: credentialId, key: key.toString('base64url'), renew };
    },
  );
}
