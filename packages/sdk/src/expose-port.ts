import type { operations } from '@releap/contract/wire';
import type { Client, Output } from './types.ts';

type EndpointOperations = Pick<typeof operations, 'createEndpoint' | 'listEndpoints' | 'updateEndpoint'>;

/**
 * Exposes a port of a sandbox; idempotent. Returns the existing endpoint if there is one, with the visibility adjusted.
 * @param isPublic reachable without a credential; default private
 */
export async function exposePort(
  api: Client<EndpointOperations>,
  vmId: string,
  port: number,
  isPublic = false,
): Promise<Output<typeof operations.createEndpoint>> {
  const params = { id: vmId };
  try {
    return await api.createEndpoint({ params, body: { port, public: isPublic } });
  } catch (error) {
    // Of the client's error class, which may not be `ReleapError`. An earlier service has no codes.
    const { status, code = 'already_exposed' } = error as { status?: unknown; code?: string };
    if (status !== 409 || code !== 'already_exposed') throw error;
  }
  const { endpoints } = await api.listEndpoints({ params });
  const existing = endpoints.find((endpoint) => endpoint.port === port);
  // Removed since.
  if (existing === undefined) return await api.createEndpoint({ params, body: { port, public: isPublic } });
  if (existing.public === isPublic) return existing;
  return await api.updateEndpoint({
    params: { ...params, endpoint_id: existing.id },
    body: { public: isPublic },
  });
}
