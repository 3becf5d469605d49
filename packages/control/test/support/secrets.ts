import { tokenDigest } from '@releap/contract';
import { inspect } from '@releap/testing/inspect';
import type { Answer, Caller, World } from '@releap/testing/world';
import type { Encryption } from '../../src/platform/encryption/encryption.ts';
import { readSandboxSecrets } from '../../src/storage/secrets/sandbox-secrets.ts';

/** What tests ask of a world's secrets. @param world asked for at each call, so that it may start later */
export function secretsOf(world: () => World, encryption: Encryption) {
  return {
    put: (name: string, body: unknown = { value: 'x' }, by: Caller = world().call): Promise<Answer> =>
      by('PUT', `/secrets/${name}`, body),
    stored: async (caller: Caller, name: string) => {
      const { rows } = await world().database.pool.query(
        'select * from secrets where project_id = $1 and name = $2 and deleted_at is null',
        [caller.projectId, name],
      );
      return rows[0];
    },
    envOf: async (uuid: string): Promise<Record<string, string>> =>
      (await inspect(world().database, { uuid })).env,
    /** What a placeholder stands for in a sandbox. */
    lookUp: async (
      uuid: string,
      placeholder = '',
    ): Promise<{ name: string; value: string; allowedDomains: string[] } | null> => {
      const read = await readSandboxSecrets(world().database.pool, encryption, [{ id: uuid }], null);
      const hash = tokenDigest(placeholder).toString('hex');
      const found = read.sandboxes[0]?.secrets.find(({ placeholders }) => placeholders.includes(hash));
      if (found === undefined) return null;
      return { name: found.name, value: found.value, allowedDomains: found.allowed_domains };
    },
  };
}
