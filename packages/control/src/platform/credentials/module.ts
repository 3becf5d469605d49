import type { DataTokens } from './data-tokens.ts';
import type { RunnerCredentials } from './runner-credentials.ts';
import type { Module } from '../module.ts';
import { runnerRoutes } from './runner-routes.ts';

export function credentialsModule(context: {
  dataTokens: DataTokens;
  runnerCredentials: RunnerCredentials;
}): Module {
  return { name: 'credentials', routes: (planes) => runnerRoutes(planes, context) };
}
