import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { managementRoutes } from './routes.ts';

/** Organizations, members, invitations, projects, API keys, audit. */
export function managementModule(context: ControlContext): Module {
  return {
    name: 'management',
    routes: (planes) => managementRoutes(planes, { ...context, oidc: context.options.oidc }),
    teardown: [
      batchStep(context.database, {
        name: 'api-keys',
        phase: 'revoke',
        text: `update api_keys set revoked_at = now()
                where id in (select id from api_keys where project_id = $1 and revoked_at is null limit $2) returning 1`,
      }),
    ],
  };
}
