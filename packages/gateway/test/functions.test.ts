/** Calls of functions: what handlers and clients see, also when handlers misbehave. All of these tests share two gateways. */
import './functions/requests.ts';
import './functions/capacity.ts';
import './functions/failures.ts';
import './functions/instances.ts';
import './functions/idle.ts';
