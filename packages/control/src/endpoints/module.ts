import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { endpointRoutes } from './routes.ts';

export function endpointsModule(context: ControlContext): Module {
  return {
    name: 'endpoints',
    routes: (planes) => endpointRoutes(planes, context),
    teardown: [
      statementStep(context.database, {
        name: 'endpoints',
        phase: 'revoke',
        text: 'with gone as (delete from endpoints where project_id = $1) select 1 where false',
      }),
    ],
  };
}
