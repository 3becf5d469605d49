import { operatorOperations } from '@releap/contract';
import type { Database } from '@releap/database';
import type { DataTokens } from './data-tokens.ts';
import type { RunnerCredentials } from './runner-credentials.ts';
import type { Module } from '../module.ts';
import { createJoinToken, JOIN_TOKEN_PURGE, listJoinTokens, revokeJoinToken } from './join-tokens.ts';
import { runnerRoutes } from './runner-routes.ts';

export function credentialsModule(context: {
  database: Database;
  dataTokens: DataTokens;
  deploymentId: string;
  runnerCredentials: RunnerCredentials;
}): Module {
  const { database } = context;
  return {
    name: 'credentials',
    purges: [JOIN_TOKEN_PURGE],
    routes(planes) {
      runnerRoutes(planes, context);
      const { operator } = planes;
      operator.operation(operatorOperations.createJoinToken, ({ body }) =>
        createJoinToken(database.pool, body),
      );
      operator.operation(operatorOperations.listJoinTokens, ({ query }) =>
        listJoinTokens(database.pool, query),
      );
      operator.operation(operatorOperations.revokeJoinToken, ({ params }) =>
        revokeJoinToken(database.pool, params.id),
      );
    },
  };
}
