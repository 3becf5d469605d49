/** The gateway between clients and runners. All of these tests share two gateways. */
import './gateway/requests.ts';
import './gateway/upgrades.ts';
import './gateway/request-ids.ts';
