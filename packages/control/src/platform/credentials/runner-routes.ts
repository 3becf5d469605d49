/** HTTP operations of runners: join, and the key of data tokens. */
import { bearerToken, internalOperations } from '@releap/contract';
import type { Planes } from '../http/planes.ts';
import type { DataTokens } from './data-tokens.ts';
import type { RunnerCredentials } from './runner-credentials.ts';

export interface RunnerRoutes {
  runnerCredentials: RunnerCredentials;
  dataTokens: DataTokens;
}

export function runnerRoutes(
  { runner: plane }: Planes,
  { runnerCredentials, dataTokens }: RunnerRoutes,
): void {
  plane.operation(internalOperations.joinRunner, async ({ body, request }) => {
    const { runner_id, credential_sha256 } = body;
    await runnerCredentials.join({
      runnerId: runner_id,
      digest: Buffer.from(credential_sha256, 'hex'),
      token: bearerToken(request.headers.authorization),
    });
    return { runner_id };
  });

  plane.operation(
    internalOperations.getRunnerDataKey,
    async ({ runner: { runnerId, credentialId, renew } }) => {
      const key = await dataTokens.keyOf(runnerId, credentialId);
      return { key_id: credentialId, key: key.toString('base64url'), renew };
    },
  );
}
