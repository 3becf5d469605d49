import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { managementRoutes } from './routes.ts';

/** Organizations, members, invitations, projects, API keys, audit. */
export function managementModule(context: ControlContext): Module {
  return {
    name: 'management',
    routes: (planes) => managementRoutes(planes, { ...context, oidc: context.options.oidc }),
    teardown: [
      statementStep(context.database, {
        name: 'api-keys',
        phase: 'revoke',
        text: `with gone as (update api_keys set revoked_at = now() where project_id = $1 and revoked_at is null)
               select 1 where false`,
      }),
    ],
  };
}
