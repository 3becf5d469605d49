import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { createRegistries } from './registries.ts';
import { registryRoutes } from './routes.ts';

export function registriesModule({ database, encryption }: ControlContext): Module {
  return {
    name: 'registries',
    routes: (planes) =>
      registryRoutes(planes, { database, registries: createRegistries(database, encryption) }),
    teardown: [
      statementStep(database, {
        name: 'registry-credentials',
        phase: 'erase',
        text: 'with gone as (delete from registry_credentials where project_id = $1) select 1 where false',
      }),
    ],
  };
}
