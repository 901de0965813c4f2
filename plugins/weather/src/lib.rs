//! The weather in a city: a small tool that needs two web origins.
//!
//! Read it to learn how a tool is written. `#[tool]` makes one of a plain function: its doc comment tells the model
//! what the tool does, its parameters become the schema, and `http(…)` says which origins it wants and why. It gets
//! them only where the operator grants them too, in `agentloop.toml`:
//!
//! ```toml
//! [grants.weather]
//! http = ["https://geocoding-api.open-meteo.com", "https://api.open-meteo.com"]
//! ```

use agentloop_sdk::{Result, ToolError, args, http::Request, tool, tools};

tools![get_weather];

/// Return the current weather in a city, and how warm and wet today will be.
#[tool(
    read_only,
    title = "Weather",
    timeout = "15s",
    http(
        "https://geocoding-api.open-meteo.com",
        reason = "to find where the city is"
    ),
    http("https://api.open-meteo.com", reason = "to ask for the weather there")
)]
fn get_weather(
    /// The name of a city, such as `Lisbon`
    city: String,
) -> Result<String> {
    // `?` hands every failure to the model; a refusal of the host's says which grant is missing.
    let places: Places = Request::get("https://geocoding-api.open-meteo.com/v1/search")
        .query("name", &city)
        .query("count", 1)
        .send()?
        .error_for_status()?
        .json()?;
    let Some(place) = places.results.first() else {
        // What the model can mend is an error that says how.
        return Err(ToolError::invalid_arguments(format!(
            "no place is called `{city}`; try its English name"
        )));
    };
    let weather: Weather = Request::get("https://api.open-meteo.com/v1/forecast")
        .query("latitude", place.latitude)
        .query("longitude", place.longitude)
        .query("timezone", "auto")
        .query("forecast_days", 1)
        .query("current", "temperature_2m,weather_code,wind_speed_10m")
        .query(
            "daily",
            "temperature_2m_min,temperature_2m_max,precipitation_sum",
        )
        .send()?
        .error_for_status()?
        .json()?;
    let Weather { current, daily } = weather;
    let mut text = format!(
        "{}, {}: {}, {} °C, wind {} km/h",
        place.name,
        place.country,
        sky(current.weather_code),
        current.temperature_2m,
        current.wind_speed_10m
    );
    if let (Some(min), Some(max), Some(rain)) = (
        daily.temperature_2m_min.first(),
        daily.temperature_2m_max.first(),
        daily.precipitation_sum.first(),
    ) {
        text.push_str(&format!(
            "; today {min} to {max} °C, {rain} mm of rain or snow"
        ));
    }
    Ok(text)
}

/// What of the answers is needed; the rest is left out.
#[args]
struct Places {
    /// Missing where nothing was found
    #[default(Vec::new())]
    results: Vec<Place>,
}

#[args]
struct Place {
    name: String,
    #[default(String::new())]
    country: String,
    latitude: f64,
    longitude: f64,
}

#[args]
struct Weather {
    current: Current,
    daily: Daily,
}

#[args]
struct Current {
    temperature_2m: f64,
    wind_speed_10m: f64,
    weather_code: u8,
}

#[args]
struct Daily {
    temperature_2m_min: Vec<f64>,
    temperature_2m_max: Vec<f64>,
    precipitation_sum: Vec<f64>,
}

/// The code of the World Meteorological Organization in words, as far as this service uses it.
fn sky(code: u8) -> &'static str {
    match code {
        0 => "clear",
        1 => "mostly clear",
        2 => "partly cloudy",
        3 => "overcast",
        45 | 48 => "fog",
        51..=57 => "drizzle",
        61..=67 => "rain",
        71..=77 => "snow",
        80..=82 => "rain showers",
        85 | 86 => "snow showers",
        95..=99 => "thunderstorm",
        _ => "unknown sky",
    }
}

#[cfg(test)]
mod tests {
    use agentloop_sdk::http::{self, Error, Response};

    use super::*;

    /// What the service answers, shortened.
    fn service() -> http::Fake {
        http::fake(|request| {
            let host = request.url.split('/').nth(2).unwrap();
            Ok(match host {
                "geocoding-api.open-meteo.com"
                    if request.url.contains("name=S%C3%A3o%20Paulo&") =>
                {
                    Response::new(
                        200,
                        r#"{"results":[{"id":1,"name":"São Paulo","country":"Brazil","latitude":-23.5,"longitude":-46.6}]}"#,
                    )
                }
                "geocoding-api.open-meteo.com" => {
                    Response::new(200, r#"{"generationtime_ms":0.5}"#)
                }
                "api.open-meteo.com" if request.url.contains("latitude=-23.5&longitude=-46.6&") => {
                    Response::new(
                        200,
                        r#"{"current":{"time":"2026-01-01T12:00","temperature_2m":27.1,"weather_code":61,"wind_speed_10m":9},
                        "daily":{"temperature_2m_min":[19.5],"temperature_2m_max":[28],"precipitation_sum":[4.2]}}"#,
                    )
                }
                _ => Response::new(400, "what?"),
            })
        })
    }

    #[test]
    fn the_weather_is_told() {
        let _network = service();
        assert_eq!(
            get_weather("São Paulo".into()).unwrap(),
            "São Paulo, Brazil: rain, 27.1 °C, wind 9 km/h; today 19.5 to 28 °C, 4.2 mm of rain or snow"
        );
    }

    #[test]
    fn an_unknown_city_is_the_callers_error() {
        let _network = service();
        let error = get_weather("Nowhere".into()).unwrap_err();
        assert!(
            matches!(&error, ToolError::InvalidArguments(text) if text.contains("`Nowhere`")),
            "{error:?}"
        );
    }

    #[test]
    fn what_the_host_refuses_is_denied() {
        let _network = http::fake(|request| {
            Err(Error::Denied {
                attempted: request.url.clone(),
            })
        });
        assert!(matches!(
            get_weather("Lisbon".into()),
            Err(ToolError::Denied(_))
        ));
    }
}
