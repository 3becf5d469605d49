import type { Database } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { createRegistries } from './registries.ts';
import { registryRoutes } from './routes.ts';

export function registriesModule({
  database,
  encryption,
}: {
  database: Database;
  encryption: Encryption;
}): Module {
  return {
    name: 'registries',
    routes: (planes) =>
      registryRoutes(planes, { database, registries: createRegistries(database, encryption) }),
    teardown: [
      batchStep(database, {
        name: 'registry-credentials',
        phase: 'erase',
        text: `delete from registry_credentials
                where project_id = $1 and host in (select host from registry_credentials where project_id = $1 limit $2)
               returning 1`,
      }),
    ],
  };
}
