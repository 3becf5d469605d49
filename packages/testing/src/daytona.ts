/**
 * The unmodified SDK whose protocol the compatibility facade speaks, and its generated client. The set-up of tests installs
 * them apart from our packages, so they have no types here. With `RELEAP_TEST_SDK=newest` it is the newest one.
 */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import type { Service } from './service.ts';

const CLIENTS = resolve(import.meta.dirname, '../../../build/test-clients');
export const isNewestSdk = process.env['RELEAP_TEST_SDK'] === 'newest';
const contract = createRequire(resolve(CLIENTS, 'package.json'));
const load = isNewestSdk ? createRequire(resolve(CLIENTS, 'newest/package.json')) : contract;

// oxlint-disable-next-line typescript/no-explicit-any -- untyped, as said above
export type Untyped = any;

export const sdk: Untyped = load('@daytonaio/sdk');
export const apiClient: Untyped = load('@daytona/api-client');
export const computeSdk = (): Untyped => contract('@computesdk/daytona');

// The SDK sends its requests to no proxy of this machine, and takes the code path of a plain Node process.
process.env['NO_PROXY'] = '127.0.0.1,localhost';

/** The SDK gives up on a create after a minute, which a build of its image on a busy machine takes longer than. */
export const PATIENT = { timeout: 600 };

/** A client of the service, as its users make one: with another URL. */
export function daytonaOf({ bootstrap }: Pick<Service, 'bootstrap'>, options: object = {}): Untyped {
  return new sdk.Daytona({ apiKey: bootstrap.api_key, apiUrl: bootstrap.compat_url, ...options });
}

/** The error of a call must be of the class that the SDK has for its status. */
export async function fails(
  call: () => Promise<unknown>,
  error: Untyped,
  message: RegExp,
  status?: number,
): Promise<void> {
  await assert.rejects(call, (thrown: Untyped) => {
    assert.equal(thrown.constructor, error, String(thrown));
    assert.match(thrown.message, message);
    if (status !== undefined) assert.equal(thrown.statusCode, status);
    return true;
  });
}
