"""What the callout hears and says, and how its parts are wired.

It hears the servers' questions and nothing else: no events, no streams. Two replicas share them. Without it
those who are connected stay, and services with keys come in; node agents wait outside, working from their
journals, until one replica is back.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import structlog
from prometheus_client import Counter

from services.authcallout.decide import Agent, Tenant, identify
from services.authcallout.settings import AuthcalloutSettings
from services.authcallout.tokens import Fetch, Tokens, over_https
from shared.bus.callout import Callout, Grant, Question, Signer, over
from shared.bus.permissions import AGENTS, agent, samples
from shared.clock import Clock, SystemClock
from shared.errors import FleetError, Permanent, Temporary
from shared.host import health
from shared.host.settings import SharedSettings
from shared.host.tasks import together

_ANSWERS = Counter("mediafleet_authcallout_answers", "Questions answered, by outcome.", ["outcome"])

log = structlog.get_logger(__name__)


class Doorkeeper:
    """Says who comes in, and as whom."""

    def __init__(self, tokens: Tokens, *, namespace: str) -> None:
        """Args: tokens: the judge of tokens. namespace: of the agents."""
        self._tokens = tokens
        self._namespace = namespace

    async def decide(self, question: Question) -> Grant:
        """Who it is.

        Raises:
            FleetError: why it does not come in.
        """
        try:
            granted = await self._decide(question)
        except FleetError as error:
            _ANSWERS.labels("unknown" if isinstance(error, Temporary) else "refused").inc()
            log.warning("refused", client=question.client, reason=str(error))
            raise
        _ANSWERS.labels("granted").inc()
        log.info("granted", client=question.client, name=granted.name, until=granted.until.isoformat())
        return granted

    async def _decide(self, question: Question) -> Grant:
        if not question.token:
            raise Permanent("no token, and no key of the configuration", field="token")
        claims = await self._tokens.claims(question.token)
        until = datetime.fromtimestamp(int(claims["exp"]), UTC)
        match identify(claims, namespace=self._namespace, agents=AGENTS):
            case Agent(service, node, pod):
                return Grant(f"{service}@{node} ({pod})", agent(service, node), until)
            case Tenant(namespace, account):
                return Grant(f"samples@{namespace} ({account})", samples(namespace), until)


async def run(
    shared: SharedSettings,
    settings: AuthcalloutSettings,
    *,
    clock: Clock | None = None,
    fetch: Fetch | None = None,
) -> None:
    """Answer until cancelled.

    Args:
        shared: where the bus is, and our key for it.
        settings: whose tokens are believed.
        clock: the time; the system's by default.
        fetch: asks the API server; over HTTPS by default.

    Raises:
        FleetError: the bus does not let us in, or a file is missing.
    """
    clock = clock or SystemClock()
    fetch = fetch or over_https(
        settings.api_url, ca_file=settings.api_ca_file, token_file=settings.api_token_file
    )
    tokens = Tokens(
        fetch,
        clock,
        audience=settings.audience,
        issuer=settings.token_issuer,
        keys_max_age_s=settings.keys_max_age_s,
        fetch_again_s=settings.fetch_again_s,
    )
    doorkeeper = Doorkeeper(tokens, namespace=settings.namespace)
    signer = Signer.read(settings.issuer_seed_file)
    callout = Callout(over(shared.access, instance=shared.instance), signer, clock, doorkeeper.decide)

    def ready() -> str:
        if not callout.connected:
            return "the bus is not connected"
        return "" if tokens.ready else "the API server gave no keys yet"

    async with health.serve(shared.health_host, shared.health_port, live=_alive, ready=ready) as endpoint:
        log.info("started", health_port=endpoint.port)
        await together(callout=callout.run(shared.nats_url), keys=_first_keys(tokens, settings.fetch_again_s))


async def _first_keys(tokens: Tokens, again_s: float) -> None:
    """Have keys before the first question; later ones are fetched when they are needed."""
    while not tokens.ready:
        try:
            await tokens.refresh()
        except Temporary as error:
            log.warning("no keys yet", reason=str(error))
        await asyncio.sleep(again_s if not tokens.ready else 0)
    await asyncio.Event().wait()


def _alive() -> str:
    """A lost bus or API server is no reason to be restarted."""
    return ""
