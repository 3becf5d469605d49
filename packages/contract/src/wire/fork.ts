/** Forks. */
import { Type, type Static } from 'typebox';
import { BOUNDS } from './platform/limits.ts';
import { SandboxCreateResponse } from './sandbox.ts';

export const SandboxForkRequest = Type.Object({
  name: Type.Optional(
    Type.String({ maxLength: BOUNDS.displayNameChars, description: 'Default `<name of the source>-fork`.' }),
  ),
});
export type SandboxForkRequest = Static<typeof SandboxForkRequest>;

export const SandboxForkResponse = Type.Object({
  ...SandboxCreateResponse.properties,
  forked_from: Type.String({ description: 'Id of the source.' }),
});
export type SandboxForkResponse = Static<typeof SandboxForkResponse>;
